"""Does the map change when it should, and only then?"""
