from job_preamble import FOLDER, os, until, worker

(FOLDER / "new").write_text(os.environ["PLATOON_JOB"])
(FOLDER / "new").rename(FOLDER / "job")
until(lambda: (FOLDER / "late").exists() or worker.should_stop)
