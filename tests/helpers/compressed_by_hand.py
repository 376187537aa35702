"""What compressed all-reduces on devices give, by another way than theirs."""

import numpy as np

from platoon_base.compression.device_source import block_of

__all__ = ["CompressedByHand"]


class CompressedByHand:
    """All-reduces on devices that are compressed between hosts, by the codecs of the host on whole arrays."""

    def __init__(self, workers, codec):
        self.workers, self.codec = workers, codec
        self.kept = {}  # the residuals

    def all_reduce(self, arrays, op):
        lanes, hosts, size = min(self.workers), len(self.workers), arrays[0].size
        unit = lanes * hosts * block_of(self.codec)
        padded = [np.pad(array, (0, -size % unit)).reshape(lanes, hosts, -1) for array in arrays]
        starts = np.cumsum([0, *self.workers])
        sums = []
        for first, last in zip(starts, starts[1:]):
            total = padded[first].copy()
            for array in padded[first + 1 : last]:
                total += array
            sums.append(total)
        result = np.empty_like(padded[0])
        for lane in range(lanes):
            for host in range(hosts):
                total = None
                for other in range(hosts):
                    share = sums[other][lane, host]
                    if other != host:
                        share = self._through((other, lane, host), share)
                    total = share.copy() if total is None else total + share
                if op == "mean":
                    total = total / np.float32(len(arrays))
                result[lane, host] = self._through((host, lane, host), total)
        return result.reshape(-1)[:size]

    def _through(self, key, values):
        values = values + self.kept.get(key, np.float32(0))
        data, out = np.zeros(self.codec.nbytes(values.size), np.uint8), np.empty_like(values)
        self.codec.encode(values, data)
        self.codec.decode(data, out)
        with np.errstate(invalid="ignore"):
            lost = values - out
        self.kept[key] = np.where(np.isfinite(lost), lost, np.float32(0))
        return out
