"""What a notebook calls; ``import essim`` loads it when one of its names is used."""
