"""``python -m platoon_base`` is ``platoon``."""

from platoon_base.cli.commands import main

if __name__ == "__main__":
    main()
