import sys

sys.exit("set SHOP_URL first")
