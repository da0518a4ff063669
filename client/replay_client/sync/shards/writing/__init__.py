"""Writers of tables on several servers."""
