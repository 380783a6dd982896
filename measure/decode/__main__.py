"""``python -m measure.decode``."""

import sys

from essim.errors import TORCH_HINT, AbsentError

try:
    from measure.decode.main import main
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    print(f"error: the decode run needs torch. {TORCH_HINT}.", file=sys.stderr)
    sys.exit(AbsentError.exit_code)

if __name__ == "__main__":
    main()
