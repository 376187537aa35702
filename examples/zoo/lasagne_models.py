"""Four image networks in Lasagne: AlexNet, GoogLeNet, VGG-16 and ResNet-50, at full or reduced width.

Each function returns the output layer, a softmax over the classes. ``shape`` is (channels, height, width) of an image.
``width`` multiplies the number of filters and units of every layer but the last: 1.0 is the network of the paper,
0.1 with a smaller image is a variant that trains on a processor.
"""

from __future__ import annotations

import theano.tensor as T
from lasagne.init import Constant, HeNormal
from lasagne.layers import (
    ConcatLayer,
    Conv2DLayer,
    DenseLayer,
    DropoutLayer,
    ElemwiseSumLayer,
    GlobalPoolLayer,
    InputLayer,
    Layer,
    LocalResponseNormalization2DLayer,
    MaxPool2DLayer,
    NonlinearityLayer,
)
from lasagne.nonlinearities import rectify, softmax

__all__ = ["MODELS", "BatchNorm", "alexnet", "googlenet", "resnet50", "vgg16"]


class BatchNorm(Layer):
    """Batch normalization over all axes but the channels; Lasagne 0.1 has no layer for it.

    ::

        y := gamma (x - mean) / sqrt(variance + epsilon) + beta

    In training, mean and variance are those of the mini-batch, and the running ones move toward them by ``factor``.

    References
    ----------
    Ioffe, Szegedy: Batch Normalization, 2015, arXiv:1502.03167.
    """

    def __init__(self, incoming, factor=0.1, epsilon=1e-4, **kwargs):
        super().__init__(incoming, **kwargs)
        self.factor, self.epsilon = factor, epsilon
        size = (self.input_shape[1],)
        self.gamma = self.add_param(Constant(1), size, "gamma", regularizable=False)
        self.beta = self.add_param(Constant(0), size, "beta", regularizable=False)
        self.mean = self.add_param(Constant(0), size, "mean", trainable=False, regularizable=False)
        self.variance = self.add_param(Constant(1), size, "variance", trainable=False, regularizable=False)

    def get_output_for(self, input, deterministic=False, **kwargs):
        gamma, beta, mean, variance = (
            param.dimshuffle("x", 0, "x", "x") for param in (self.gamma, self.beta, self.mean, self.variance)
        )
        if deterministic:
            return T.nnet.bn.batch_normalization_test(input, gamma, beta, mean, variance, "spatial", self.epsilon)
        output, _, _, new_mean, new_variance = T.nnet.bn.batch_normalization_train(
            input, gamma, beta, "spatial", self.epsilon, self.factor, mean, variance
        )
        # A clone with a default update is how a Theano graph brings an update of its own: the compiled function
        # applies it, and the adapter finds the statistics by it. It adds nothing to the output.
        for statistic, new in ((self.mean, new_mean), (self.variance, new_variance)):
            running = statistic.clone()
            running.default_update = new.flatten()
            output += 0 * running.dimshuffle("x", 0, "x", "x")
        return output


def scaled(number, width):
    """Return so many filters or units times the width, at least one."""
    return max(1, round(number * width))


def conv(incoming, filters, size, **options):
    """Return a convolution with relu and weights that keep the variance through it."""
    return Conv2DLayer(incoming, filters, size, W=HeNormal("relu"), **options)


def dense(incoming, units):
    """Return a dense layer with relu, behind dropout of one half."""
    return DropoutLayer(DenseLayer(incoming, units, W=HeNormal("relu")), 0.5)


def alexnet(shape=(3, 227, 227), classes=1000, width=1.0, input_var=None):
    """Return AlexNet, in one tower: 62,378,344 parameters for 1000 classes.

    The paper divides the 2nd, 4th and 5th convolution into two groups, one per GPU, which leaves 60,965,224. Here each
    filter sees all channels. The smallest image is 67 x 67.

    References
    ----------
    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, NIPS 2012.
    """
    require_size(shape, 67)
    net = InputLayer((None, *shape), input_var)
    net = conv(net, scaled(96, width), 11, stride=4)
    net = MaxPool2DLayer(LocalResponseNormalization2DLayer(net, n=5), 3, stride=2)
    net = conv(net, scaled(256, width), 5, pad=2)
    net = MaxPool2DLayer(LocalResponseNormalization2DLayer(net, n=5), 3, stride=2)
    for filters in (384, 384, 256):
        net = conv(net, scaled(filters, width), 3, pad=1)
    net = MaxPool2DLayer(net, 3, stride=2)
    for _ in range(2):
        net = dense(net, scaled(4096, width))
    return DenseLayer(net, classes, nonlinearity=softmax)


def vgg16(shape=(3, 224, 224), classes=1000, width=1.0, input_var=None):
    """Return VGG-16 (configuration D of the paper): 138,357,544 parameters for 1000 classes.

    The smallest image is 32 x 32.

    References
    ----------
    Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, 2014, arXiv:1409.1556.
    """
    require_size(shape, 32)
    net = InputLayer((None, *shape), input_var)
    for filters, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            net = conv(net, scaled(filters, width), 3, pad=1)
        net = MaxPool2DLayer(net, 2)
    for _ in range(2):
        net = dense(net, scaled(4096, width))
    return DenseLayer(net, classes, nonlinearity=softmax)


# Filters of each module of GoogLeNet, table 1 of the paper: 1x1; 3x3 and the reduction before it; 5x5 and the reduction
# before it; the projection behind the pooling. Between the lists the image is halved.
INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def inception(net, filters):
    """Return a module of GoogLeNet: four branches on the same input, side by side in the channels."""
    one, reduce_three, three, reduce_five, five, project = filters
    return ConcatLayer(
        [
            conv(net, one, 1),
            conv(conv(net, reduce_three, 1), three, 3, pad=1),
            conv(conv(net, reduce_five, 1), five, 5, pad=2),
            conv(MaxPool2DLayer(net, 3, stride=1, pad=1), project, 1),
        ]
    )


def googlenet(shape=(3, 224, 224), classes=1000, width=1.0, input_var=None):
    """Return GoogLeNet without its auxiliary classifiers: 6,998,552 parameters for 1000 classes.

    Pools have a margin of one pixel where the paper rounds sizes up, to the same sizes. The smallest image is 32 x 32.

    References
    ----------
    Szegedy and others: Going Deeper with Convolutions, 2014, arXiv:1409.4842.
    """
    require_size(shape, 32)
    net = InputLayer((None, *shape), input_var)
    net = MaxPool2DLayer(conv(net, scaled(64, width), 7, stride=2, pad=3), 3, stride=2, pad=1)
    net = conv(LocalResponseNormalization2DLayer(net, n=5), scaled(64, width), 1)
    net = LocalResponseNormalization2DLayer(conv(net, scaled(192, width), 3, pad=1), n=5)
    for modules in INCEPTIONS:
        net = MaxPool2DLayer(net, 3, stride=2, pad=1)
        for filters in modules:
            net = inception(net, [scaled(number, width) for number in filters])
    return DenseLayer(DropoutLayer(GlobalPoolLayer(net), 0.4), classes, nonlinearity=softmax)


def normalized(net, filters, size, nonlinearity=rectify, **options):
    """Return a convolution without biases, batch normalization and the nonlinearity."""
    net = Conv2DLayer(net, filters, size, W=HeNormal("relu"), b=None, nonlinearity=None, **options)
    return NonlinearityLayer(BatchNorm(net), nonlinearity)


def bottleneck(net, filters, stride, project):
    """Return a residual block of three convolutions: narrow, 3x3, and four times as wide."""
    branch = normalized(net, filters, 1, stride=stride)
    branch = normalized(branch, filters, 3, pad=1)
    branch = normalized(branch, 4 * filters, 1, nonlinearity=None)
    if project:
        net = normalized(net, 4 * filters, 1, stride=stride, nonlinearity=None)
    return NonlinearityLayer(ElemwiseSumLayer([branch, net]), rectify)


def resnet50(shape=(3, 224, 224), classes=1000, width=1.0, input_var=None):
    """Return ResNet-50: 25,557,032 parameters for 1000 classes, and 53,120 running statistics.

    The smallest image is 32 x 32.

    References
    ----------
    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015, arXiv:1512.03385.
    """
    require_size(shape, 32)
    net = InputLayer((None, *shape), input_var)
    net = MaxPool2DLayer(normalized(net, scaled(64, width), 7, stride=2, pad=3), 3, stride=2, pad=1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            net = bottleneck(net, scaled(64 * 2**stage, width), stride, project=not block)
    return DenseLayer(GlobalPoolLayer(net), classes, nonlinearity=softmax)


def require_size(shape, least):
    """Raise if an image is so small that nothing of it would be left behind the pools."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"got shape={shape}: this network needs (channels, height, width) of at least {least} x {least} pixels; "
            "pass a larger image, and a smaller width to save time"
        )


MODELS = {"alexnet": alexnet, "googlenet": googlenet, "vgg16": vgg16, "resnet50": resnet50}
