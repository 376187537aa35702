"""``python -m platoon_base`` is ``platoon``."""

from platoon_base.cli import main

if __name__ == "__main__":
    main()
