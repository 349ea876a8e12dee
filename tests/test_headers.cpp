// A library has a source; see CMakeLists.txt.
