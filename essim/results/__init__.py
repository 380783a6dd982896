"""Result rows: what each column is, and the files they are written to."""
