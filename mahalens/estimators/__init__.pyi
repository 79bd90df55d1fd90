from .classifier import MahalanobisClassifier as MahalanobisClassifier
from .metric import MahalanobisMetric as MahalanobisMetric
from .mixture import MahalanobisMixture as MahalanobisMixture
from .outliers import MahalanobisOutliers as MahalanobisOutliers
