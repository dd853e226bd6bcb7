# /// script
# dependencies = ["gymnasium[box2d]"]
# ///
"""Box2D: vectors and 96 x 96 images, without infos."""

from comparison import compare

if __name__ == "__main__":
    compare("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3")
