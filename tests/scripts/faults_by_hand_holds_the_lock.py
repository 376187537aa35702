from faults_by_hand_train import worker

worker.lock()
print("has it", flush=True)
import signal

signal.pause()
