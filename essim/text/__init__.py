"""Text in and out: strict YAML with file and line, units, files written whole."""
