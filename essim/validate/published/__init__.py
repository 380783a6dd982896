"""Every published comparison beside what essim predicts: ``essim published``."""
