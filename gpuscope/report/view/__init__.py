"""What every front shares: order, headline, vocabulary, units, sentences."""
