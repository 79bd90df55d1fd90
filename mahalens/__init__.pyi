from ._version import __version__ as __version__

# Reading networks: audit(model, data) reads any network, read_layer one layer about a Gaussian
from .auditing import AuditRecord as AuditRecord
from .auditing import Watch as Watch
from .auditing import audit as audit
from .auditing import audit_features as audit_features
from .auditing import load_audit as load_audit
from .auditing import prune as prune
from .auditing import read_gram as read_gram
from .auditing import read_layer as read_layer

# Data sets by name, from files and drawn
from .data import LabelledData as LabelledData
from .data import draw_ellipsoids as draw_ellipsoids
from .data import draw_gaussian as draw_gaussian
from .data import load_gaussian as load_gaussian
from .data import load_set as load_set
from .data import save_gaussian as save_gaussian

# What a network does not know
from .detection import detect as detect
from .detection import detect_features as detect_features

# Errors
from .errors import InputError as InputError
from .errors import MahalensError as MahalensError

# Gaussians and ellipsoids: distances, whitening, points from distances
from .geometry import Ellipsoids as Ellipsoids
from .geometry import Gaussian as Gaussian
from .geometry import ellipsoids as ellipsoids
from .geometry import reconstruct as reconstruct

# Starting weights, of a layer or of a whole model, and a check before training
from .init import InitCheck as InitCheck
from .init import check_init as check_init
from .init import class_mean_ as class_mean_
from .init import cluster_pca_ as cluster_pca_
from .init import initialise as initialise
from .init import kaiming_through_samples as kaiming_through_samples
from .init import lsuv_ as lsuv_
from .init import sample_point_bias_ as sample_point_bias_
from .init import whiten_ as whiten_

# Layers, heads with a reject option, penalties, and architectures as data
from .nn import Abs as Abs
from .nn import AbsReLU as AbsReLU
from .nn import Chain as Chain
from .nn import DistanceHead as DistanceHead
from .nn import Mahalanobis as Mahalanobis
from .nn import Neg as Neg
from .nn import Norm as Norm
from .nn import OffsetL2 as OffsetL2
from .nn import PointSlope as PointSlope
from .nn import compactness_penalty as compactness_penalty
from .nn import mahalanobis_model as mahalanobis_model
from .nn import md_abs as md_abs
from .nn import md_relu as md_relu
from .nn import md_sigmoid as md_sigmoid
from .nn import orthogonality_penalty as orthogonality_penalty
from .nn import volume_penalty as volume_penalty

# Reports of runs and audits
from .report import build_report as build_report

# Training many trials at once
from .train import SGD as SGD
from .train import Adam as Adam
from .train import Batches as Batches
from .train import CrossEntropy as CrossEntropy
from .train import MeanSquaredError as MeanSquaredError
from .train import Newton as Newton
from .train import TrialStack as TrialStack
from .train import fit as fit
from .train import solve as solve
from .train import stack as stack
