! A Fortran program as they were written for MPI 1: its names, attributes, an operation of its own, output to nowhere.
program older
  implicit none
  include 'mpif.h'
  integer :: rank, ranks, error, limit, extent, lower, upper, mixed, columns, apart, own, handler, key
  integer :: lengths(2), places(2), types(2), found(2), size_of
  integer(kind=MPI_ADDRESS_KIND) :: wide
  logical :: flag
  double precision :: values(3), sums(3), checked(6)
  character(len=32) :: how
  external :: larger

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  how = ''
  if (command_argument_count() > 0) call get_command_argument(1, how)
  if (how == 'keys') then
    call MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, key, wide, error)
  end if
  if (rank > 0) open (unit=6, file='/dev/null', status='unknown')
  write (6, *) 'rank', rank
  call MPI_Attr_get(MPI_COMM_WORLD, MPI_TAG_UB, limit, flag, error)
  checked(1) = limit
  call MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, wide, flag, error)
  checked(2) = dble(wide) + merge(1, 2, flag)
  call MPI_Errhandler_get(MPI_COMM_WORLD, handler, error)
  call MPI_Errhandler_set(MPI_COMM_WORLD, handler, error)
  call MPI_Type_extent(MPI_DOUBLE_PRECISION, extent, error)
  lengths = (/ 1, 2 /)
  places = (/ 0, extent /)
  types = (/ MPI_INTEGER, MPI_DOUBLE_PRECISION /)
  call MPI_Type_struct(2, lengths, places, types, mixed, error)
  call MPI_Type_hvector(3, 1, 2 * extent, MPI_DOUBLE_PRECISION, columns, error)
  call MPI_Type_hindexed(2, lengths, places, MPI_DOUBLE_PRECISION, apart, error)
  call MPI_Type_lb(mixed, lower, error)
  call MPI_Type_ub(mixed, upper, error)
  call MPI_Type_extent(columns, found(1), error)
  call MPI_Type_size(apart, size_of, error)
  checked(3) = lower + upper + found(1) + size_of
  call MPI_Op_create(larger, .true., own, error)
  values = (/ dble(rank), 2d0 - rank, 0.5d0 * rank * rank /)
  call MPI_Allreduce(values, sums, 3, MPI_DOUBLE_PRECISION, own, MPI_COMM_WORLD, error)
  call MPI_Op_free(own, error)
  checked(4:6) = sums
  call result(rank, checked)
  call MPI_Finalize(error)
end program older

subroutine larger(given, into, length, type)
  implicit none
  include 'mpif.h'
  integer :: length, type, n
  double precision :: given(length), into(length)
  do n = 1, length
    into(n) = max(given(n), into(n)) + merge(0.125d0, 0d0, type == MPI_DOUBLE_PRECISION)
  end do
end subroutine larger

subroutine result(rank, checked)
  implicit none
  integer :: rank
  double precision :: checked(6)
  character(len=32) :: path
  write (path, '("older.", i0)') rank
  open (unit=17, file=path, status='replace', access='stream')
  write (17) checked
  close (17)
end subroutine result
