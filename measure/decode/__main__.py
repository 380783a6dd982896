"""``python -m measure.decode``."""

import sys

from essim.errors import AbsentError

try:
    from measure.decode.main import main
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    print("error: the decode run needs torch. pip install 'essim[measure]'.", file=sys.stderr)
    sys.exit(AbsentError.exit_code)

if __name__ == "__main__":
    main()
