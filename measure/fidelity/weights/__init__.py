"""Reading a checkpoint: a GGUF file, or a folder with safetensors."""
