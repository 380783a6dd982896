"""What a model is: its shape as integers, read from a preset, a mapping or a config.json."""
