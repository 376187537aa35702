from device_preamble import *

values = draw(5)
arrays = [on_device(a) for a in values]
worker.init_shared_params(arrays, EASGD(0.5))
worker.barrier()
for array in arrays:
    array[...] = np.asarray(array) + 2 * (rank == 0)
if rank == 0:
    worker.sync_params()
    np.asarray(arrays[0])
worker.barrier()
worker.copy_to_local()  # so that synchronizing changes nothing from here on
with partitions_of(arrays) as directory:
    if rank == 0:
        directory.want_mirror()
    worker.barrier()

    def is_mirrored():
        worker.sync_params()
        return directory.has_mirror(directory.wanted)

    until(is_mirrored, 10)
    mirrored = [np.empty_like(a) for a in values]
    directory.read_buffer(0, mirrored)
for m, a in zip(mirrored, values):
    assert np.allclose(m, a + 1, rtol=1e-6)
worker.barrier()
