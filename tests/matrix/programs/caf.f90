program ranks
  integer :: total[*]
  total = this_image()
  sync all
  if (this_image() == 1) then
    print '(a,i0,a,i0,a)', "sum ", total[1] + total[num_images()], " of ", num_images(), " ranks"
  end if
end program
