from platoon_base import connect

with connect() as worker:
    worker.report({"[/b]x": "[/i] [red]y :bug:"})
    worker.request_stop("see [/tmp]")
