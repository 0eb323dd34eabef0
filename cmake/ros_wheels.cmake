# The ROS 2 wheels export their Python message targets with the include folders of the machine that built them
# (/opt/python/cpXY-cpXY/...). CMake refuses targets with folders that don't exist, so point them at this
# interpreter's. The targets are changed, not the files: the wheels stay as installed.
find_package(Python3 REQUIRED COMPONENTS Interpreter Development NumPy)

get_property(imported_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(imported_target IN LISTS imported_targets)
  get_target_property(folders ${imported_target} INTERFACE_INCLUDE_DIRECTORIES)
  if(folders MATCHES "/opt/python/")
    set(here)
    foreach(folder IN LISTS folders)
      if(folder MATCHES "^/opt/python/.*/numpy/")
        list(APPEND here ${Python3_NumPy_INCLUDE_DIRS})
      elseif(folder MATCHES "^/opt/python/")
        list(APPEND here ${Python3_INCLUDE_DIRS})
      else()
        list(APPEND here ${folder})
      endif()
    endforeach()
    set_target_properties(${imported_target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${here}")
  endif()
endforeach()
