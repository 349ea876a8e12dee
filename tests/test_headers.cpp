// Nothing: precompiled headers want a file (CMakeLists.txt).
