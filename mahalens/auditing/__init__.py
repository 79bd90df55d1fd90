"""Reading a trained network as a set of distances.

``mahalens.audit(model, data)`` reads every Linear and every convolution of any model.

===================================  =========================================================
:func:`audit`                        reads a model on data, returns an :class:`AuditRecord`
:func:`audit_features`               reads activations that the user already has
:func:`load_audit`                   a saved record
:func:`prune`                        a smaller model with the same outputs
:class:`Watch`                       audits in a training loop
===================================  =========================================================

What one linear layer says about a Gaussian: a layer ``Wx + b`` [K, D] is a set of K rulers. These
functions are pure, compute in float64 whatever they are given, and leave the layer as it was.

===================================  =========================================================
:func:`read_layer`                   every metric of one layer, as the studies record them
:func:`mirrored_pairs`               units that point in opposite directions
:func:`deduplicate`                  one unit of each such pair
:func:`distance_to_hyperplanes`      how far the hyperplanes miss a point
:func:`distance_in_spreads`          the same in standard deviations of the data
:func:`sphericity`                   how far the layer is from whitening, up to scale
:func:`match_rows`                   eigenvectors and eigenvalues read off the rows
:func:`chance_cosine`                what that reading gives for a randomly rotated whitening
:func:`wnorm_precision_distance`     unit rows against the precision
:func:`read_gram`                    eigenstructure and centre read off ``WᵀW``
:func:`rows_to_read`                 the rows whose directions count under an activation
:func:`gram_scale`                   the factor of ``WᵀW`` under an activation
===================================  =========================================================
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
