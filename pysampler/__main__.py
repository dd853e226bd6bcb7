"""``python -m pysampler``: the command ``pysampler``."""

import sys

from pysampler._cli.main import main

sys.exit(main())
