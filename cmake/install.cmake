# What `cmake --install` writes: library, headers, program, and the files by which CMake and pkg-config find them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(DEEPINFER_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/deepinfer)
file(RELATIVE_PATH DEEPINFER_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" DEEPINFER_PREFIX_FROM_PC "${DEEPINFER_PREFIX_FROM_PC}")

install(TARGETS deepinfer EXPORT deepinferTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/deepinfer TYPE INCLUDE)
install(EXPORT deepinferTargets NAMESPACE deepinfer:: DESTINATION ${DEEPINFER_CMAKE_FOLDER})

configure_package_config_file(cmake/deepinferConfig.cmake.in deepinferConfig.cmake
                              INSTALL_DESTINATION ${DEEPINFER_CMAKE_FOLDER})
write_basic_package_version_file(deepinferConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/deepinferConfig.cmake
              ${CMAKE_BINARY_DIR}/deepinferConfigVersion.cmake
        DESTINATION ${DEEPINFER_CMAKE_FOLDER})

configure_file(cmake/deepinfer.pc.in deepinfer.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/deepinfer.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET deepinfer_cli)
  install(TARGETS deepinfer_cli RUNTIME)
endif()
