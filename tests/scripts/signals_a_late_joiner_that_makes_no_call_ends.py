from job_preamble import FOLDER, connect, os, tell, until

connect()
(FOLDER / "job").write_text(os.environ["PLATOON_JOB"])
tell("ready")
until((FOLDER / "go on").exists)
