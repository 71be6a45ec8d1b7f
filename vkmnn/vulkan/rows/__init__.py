"""What ops along an axis share: rows and columns, reductions, normalisation."""
