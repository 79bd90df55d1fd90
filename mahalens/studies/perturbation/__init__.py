"""The perturbation study (arXiv 2411.17932): do trained networks rely on distance or intensity?"""
