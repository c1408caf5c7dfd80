"""Every setting with its default and its checks, and how ``auto`` becomes a value.

Flags and keywords are generated from the fields; what is known of other engines' settings is here,
too. Resolution is one pure function that says what it chose.
"""
