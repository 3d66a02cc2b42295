"""What each verb does: a call and the world go in, a reply comes out and the store is changed. No I/O, no clock."""
