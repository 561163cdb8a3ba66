# streambp_cuda_architectures(ARCHITECTURES VERSION GIVEN): what nvcc VERSION is to compile for, unless GIVEN says it: machine code for Ampere
# (A100; RTX 3090), Ada (RTX 4090, L40S), Hopper (H100, H200) and, from nvcc 12.8 on, Blackwell (B200; RTX 5090), and PTX of the last for what
# comes after it.
function(streambp_cuda_architectures architectures version given)
  set(all 80 86 89 90)
  if(version VERSION_GREATER_EQUAL 12.8)
    list(APPEND all 100 120)
  endif()
  list(POP_BACK all last)
  list(TRANSFORM all APPEND "-real")
  list(APPEND all ${last})
  if(given)
    set(all ${given})
  endif()
  set(${architectures} "${all}" PARENT_SCOPE)
endfunction()
