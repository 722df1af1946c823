! A Fortran program with `use mpi`: requests, statuses, MPI_IN_PLACE, a derived type, a communicator, text.
program ocean
  use mpi
  implicit none
  integer, parameter :: n = 40
  integer :: rank, ranks, error, step, steps, got, length, half, column, left, right, i, j
  integer :: requests(4), statuses(MPI_STATUS_SIZE, 4), status(MPI_STATUS_SIZE), periods(1), dims(1), ring
  integer :: provided
  character(len=MPI_MAX_PROCESSOR_NAME) :: name
  character(len=32) :: word
  logical :: turning(1), flag
  double precision :: a(n, 0:n+1), b(n, 0:n+1), total, largest(2), began

  call MPI_Init_thread(MPI_THREAD_FUNNELED, provided, error)
  call MPI_Initialized(flag, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call MPI_Get_processor_name(name, length, error)
  steps = 12
  if (command_argument_count() > 0) then
    call get_command_argument(1, word)
    read (word, *) steps
  end if
  call MPI_Bcast(steps, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
  dims(1) = ranks
  turning(1) = .true.
  call MPI_Cart_create(MPI_COMM_WORLD, 1, dims, turning, .false., ring, error)
  call MPI_Cart_shift(ring, 0, 1, left, right, error)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, error)
  call MPI_Type_vector(n / 2, 1, 2, MPI_DOUBLE_PRECISION, column, error)
  call MPI_Type_commit(column, error)
  do j = 0, n + 1
    do i = 1, n
      a(i, j) = sin(dble(i * j + rank))
    end do
  end do
  b = a
  total = 0
  began = MPI_Wtime()
  do step = 1, steps
    call MPI_Irecv(a(1, 0), n, MPI_DOUBLE_PRECISION, left, 1, ring, requests(1), error)
    call MPI_Irecv(a(1, n + 1), 1, column, right, 2, ring, requests(2), error)
    call MPI_Isend(a(1, n), n, MPI_DOUBLE_PRECISION, right, 1, ring, requests(3), error)
    call MPI_Isend(a(1, 1), 1, column, left, 2, ring, requests(4), error)
    if (mod(step, 2) == 0) then
      call MPI_Waitall(4, requests, statuses, error)
      call MPI_Get_count(statuses(:, 1), MPI_DOUBLE_PRECISION, got, error)
    else
      call MPI_Waitany(4, requests, i, status, error)
      call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE, error)
      got = 0
    end if
    do j = 1, n
      do i = 2, n - 1
        b(i, j) = 0.2d0 * (a(i, j) + a(i - 1, j) + a(i + 1, j) + a(i, j - 1) + a(i, j + 1))
      end do
    end do
    a(2:n-1, 1:n) = b(2:n-1, 1:n)
    largest(1) = maxval(a)
    largest(2) = got
    call MPI_Allreduce(MPI_IN_PLACE, largest, 2, MPI_DOUBLE_PRECISION, MPI_MAX, half, error)
    total = total + sum(largest) + got
  end do
  if (MPI_Wtime() < began) total = -1
  call MPI_Recv(total, 1, MPI_DOUBLE_PRECISION, MPI_PROC_NULL, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
  call MPI_Type_free(column, error)
  if (column /= MPI_DATATYPE_NULL) total = -2
  call MPI_Comm_free(half, error)
  write (word, '(a,i0)') 'ocean.', rank
  open (10, file=word)
  write (10, '(z16.16)') total, sum(a)
  close (10)
  call MPI_Finalize(error)
end program ocean
