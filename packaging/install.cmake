# What `cmake --install` puts down beside the programs, and the Debian packages that `cpack` makes of it.
#
# Three components, a package each, so that nobody needs OpenGL or MPI for what does without: tencache (the command,
# shipped files, headers for policy libraries, completion, documents), gui, mpi.

# For policy libraries (docs/writing-a-policy.md): compile with -I PREFIX/include/tencache.
foreach(folder IN ITEMS core policies)
  install(DIRECTORY ${folder} DESTINATION include/tencache FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY docs/ DESTINATION share/doc/tencache)
install(FILES README.md CHANGELOG.md DESTINATION share/doc/tencache)
install(FILES LICENSE DESTINATION share/doc/tencache RENAME copyright)

set(packages tencache)
foreach(entry IN ITEMS "gui tencache-gui" "mpi tencache_mpi")
  separate_arguments(entry UNIX_COMMAND "${entry}")
  list(GET entry 0 component)
  list(GET entry 1 target)
  if(TARGET ${target})
    list(APPEND packages ${component})
    install(FILES LICENSE DESTINATION share/doc/tencache-${component} RENAME copyright COMPONENT ${component})
    string(TOUPPER ${component} COMPONENT)
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME tencache-${component})
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_DEPENDS "tencache (= ${PROJECT_VERSION})")
  endif()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL ${packages})
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGE_NAME tencache)
set(CPACK_PACKAGE_VENDOR "TenCache")
set(CPACK_PACKAGE_CONTACT "TenCache maintainers <maintainers@users.noreply.tencache.example>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_TENCACHE_PACKAGE_NAME tencache)
set(CPACK_DEBIAN_TENCACHE_PACKAGE_SUGGESTS "tencache-gui, tencache-mpi")
# The first line is the synopsis; a summary would come before it in every package.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_COMPONENT_TENCACHE_DESCRIPTION "simulator of tensor caching and offloading
Answers for training on too little GPU memory: does a step fit, how fast
will it be, what holds it back, and which offloading policy is best. Replays
recorded tensor traces through the policies on a model of GPU, CPU memory
and NVMe, and runs the same policies on real memory.")
set(CPACK_COMPONENT_GUI_DESCRIPTION "dashboard of the tencache simulator
Timelines, memory and what-if views of simulated and measured training
steps, in a window or as pictures without a display.")
set(CPACK_COMPONENT_MPI_DESCRIPTION "sweeps of the tencache simulator under mpirun
A library that tencache sweep loads where MPI started it.")
include(CPack)
