"""``python -m measure.decode``."""

from measure.decode.main import main

if __name__ == "__main__":
    main()
