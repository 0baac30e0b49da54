!> Multinomial logistic regression by full-batch gradient descent: a serial program.
!>
!>     gfortran -O2 trainer.f90 -o trainer && ./trainer shard.txt 200 weights.txt [lr]
!>
!> Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w(10, 65), a row of 64 pixels and a
!> bias for each digit, and starts from zeros.  At the end it lies in weights.txt, row after row, one number a line.
!>
!> The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
program trainer
  use, intrinsic :: iso_fortran_env, only: real64
  use plugml, only: plug ! plugml
  implicit none
  integer, parameter :: classes = 10, width = 65
  real(real64) :: w(classes, width), g(classes, width), lr, loss
  real(real64), allocatable :: x(:, :)
  integer, allocatable :: labels(:)
  character(4096) :: text
  integer :: step, steps, unit, k
  type(plug) :: p ! plugml

  if (command_argument_count() < 3) error stop 'usage: trainer SHARD STEPS WEIGHTS [LR]'
  call get_command_argument(1, text)
  call read_shard(trim(text))
  call get_command_argument(2, text)
  read (text, *) steps
  lr = 1
  if (command_argument_count() > 3) then
    call get_command_argument(4, text)
    read (text, *) lr
  end if
  w = 0

  do while (p%more(w, step, steps)) ! plugml: was do step = 1, steps
    call gradient()
    if (mod(step, 50) == 0 .or. step == 1) print '(a, i0, a, f0.6)', 'step ', step, ' loss ', loss
    if (.not. p%step(g, w, real(size(labels), real64))) w = w - lr * g ! plugml: was w = w - lr * g
  end do

  call get_command_argument(3, text)
  open (newunit=unit, file=trim(text), action='write', status='replace')
  do k = 1, classes
    write (unit, '(es24.16e3)') w(k, :)
  end do
  close (unit)

contains

  subroutine read_shard(name)
    character(*), intent(in) :: name
    integer :: rows, row, status, pixels(width - 1)
    open (newunit=unit, file=name, action='read', status='old')
    rows = 0
    do
      read (unit, *, iostat=status)
      if (status /= 0) exit
      rows = rows + 1
    end do
    allocate (x(width, rows), labels(rows))
    rewind (unit)
    do row = 1, rows
      read (unit, *) labels(row), pixels
      x(:, row) = [real(pixels, real64) / 16, 1.0_real64]
    end do
    close (unit)
  end subroutine

  !> Fill g with the mean gradient over all rows, and loss with the mean loss.
  subroutine gradient()
    real(real64) :: miss(classes)
    integer :: row, j
    g = 0
    loss = 0
    do row = 1, size(labels)
      miss = matmul(w, x(:, row))
      miss = exp(miss - maxval(miss))
      miss = miss / sum(miss)
      loss = loss - log(miss(labels(row) + 1))
      miss(labels(row) + 1) = miss(labels(row) + 1) - 1
      do j = 1, width
        g(:, j) = g(:, j) + miss * x(j, row)
      end do
    end do
    g = g / size(labels)
    loss = loss / size(labels)
  end subroutine
end program
