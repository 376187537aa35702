import atexit

atexit.register(print, "at the end")
print("before")
1 / 0
