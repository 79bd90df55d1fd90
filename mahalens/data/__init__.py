"""Data sets and random draws: named sets, files of a user, Gaussians, streams of random numbers.

=======================  ==================================================================
:func:`draw_gaussian`    a random Gaussian, drawn as in the Gaussian study
:func:`load_gaussian`    mean and covariance from a ``.json`` or ``.npz`` file
:func:`save_gaussian`    the same as a ``.json`` file that loads back exactly
:func:`draw_ellipsoids`  random ellipsoids, drawn as in the ellipsoid study
:func:`load_set`         digits, MNIST, Fashion-MNIST, CIFAR-10, tables, or a user's files
:func:`load_samples`     samples to feed a network with: the same sets, images in folders
:func:`load_backbone`    EfficientNet-Lite or MobileNetV2, trained on ImageNet
:func:`fetch_set`        bring MNIST, CIFAR-10, sequences, weights and others here, checked
:func:`load_series`      sequences by name or from ``.ts`` files, as channels and steps
:class:`LabelledData`    what it gives: samples with a class each, to train and to test
:func:`read_idx`         a single IDX file, plain or gzipped
:func:`read_ts`          a single ``.ts`` file of labelled series
:func:`stream`           independent random numbers for each purpose of a run
=======================  ==================================================================

Modules, from the bottom up: ``named`` (which sets there are, and where their files lie),
``formats`` (readers of files), ``draws``, ``dataset`` (the values), ``files`` (loading),
``backbones`` (pretrained networks) and ``fetch``. Listing and fetching need no torch.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
