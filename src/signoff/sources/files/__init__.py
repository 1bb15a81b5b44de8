"""Source `files`: finding, reading, following and putting away files."""
