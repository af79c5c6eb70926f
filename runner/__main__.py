"""`python -m runner` is `runner`."""

from runner.cli.app import main

raise SystemExit(main())
