"""Tables on several servers, as one reader of the live page may see them."""
