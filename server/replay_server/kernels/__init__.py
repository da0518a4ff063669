"""Hot loops: how they are compiled, where the machine code is kept, and how they ask for memory ahead."""
