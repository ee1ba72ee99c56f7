"""The programs of the lab's jobs. Of the lab they import nothing but each other: jobs see copies of this folder alone."""
