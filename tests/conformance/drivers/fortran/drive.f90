!> Does what its arguments say with the Fortran client, and prints the outcome of each: as drive.py, and after the word `rows` as rows.py.
program drive
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64, error_unit, output_unit
  use plugml, only: plug
  implicit none
  interface
    function c_close(fd) bind(C, name='close') result(status)
      import :: c_int
      integer(c_int), value :: fd
      integer(c_int) :: status
    end function
    function c_raise(signal) bind(C, name='raise') result(status)
      import :: c_int
      integer(c_int), value :: signal
      integer(c_int) :: status
    end function
  end interface
  type :: words
    character(:), allocatable :: text
  end type
  type(plug) :: p
  type(words), allocatable :: ops(:), wanted(:)
  integer(int64), allocatable :: wants(:)
  integer :: first, stat
  logical :: did

  call read_ops()
  did = p%attach(stat)
  if (stat /= 0) then
    write (error_unit, '(a)') trim(p%code) // ': ' // p%text
    stop 1, quiet=.true.
  end if
  allocate (wanted(0), wants(0))
  first = 1
  if (size(ops) > 0) then
    if (ops(1)%text == 'rows') first = 2
  end if
  if (first == 2) call rows()
  if (first == 1) call driven()
  if (p%code /= 'OK' .and. p%code /= 'STOP') stop 1, quiet=.true.
  did = p%bye()

contains

  subroutine read_ops()
    character(4096) :: text
    integer :: i, length, unit, status
    allocate (ops(0))
    call get_environment_variable('PLUGML_OPS', text, length)
    if (length > 0) then
      open (newunit=unit, file=text(:length), action='read')
      do
        read (unit, '(a)', iostat=status) text
        if (status /= 0) exit
        ops = [ops, words(text(:len_trim(text)))]
      end do
      close (unit)
      return
    end if
    do i = 1, command_argument_count()
      call get_command_argument(i, text, length)
      ops = [ops, words(text(:length))]
    end do
  end subroutine

  !> The n-th part of a line between colons, or ''.
  function part(line, n, mark) result(found)
    character(*), intent(in) :: line
    integer, intent(in) :: n
    character, intent(in), optional :: mark
    character(:), allocatable :: found, rest
    character :: stop_at
    integer :: i, past
    stop_at = ':'
    if (present(mark)) stop_at = mark
    rest = line // stop_at
    found = ''
    do i = 1, n
      past = index(rest, stop_at)
      if (past == 0) then
        found = ''
        return
      end if
      found = rest(:past - 1)
      rest = rest(past + 1:)
    end do
  end function

  real(real64) function number(text)
    character(*), intent(in) :: text
    number = 0
    if (text /= '') read (text, *) number
  end function

  function bit(holds) result(text)
    logical, intent(in) :: holds
    character(1) :: text
    text = merge('1', '0', holds)
  end function

  function str(n) result(text)
    integer(int64), intent(in) :: n
    character(:), allocatable :: text
    character(24) :: shown
    write (shown, '(i0)') n
    text = trim(shown)
  end function

  !> Numbers with commas between them, and a semicolon after each `width`.
  function shown(values, width) result(text)
    real(real64), intent(in) :: values(:)
    integer(int64), intent(in) :: width
    character(:), allocatable :: text
    character(40) :: one
    integer(int64) :: i
    text = ''
    do i = 1, size(values)
      if (i > 1) text = text // merge(';', ',', mod(i - 1, width) == 0)
      if (.not. abs(values(i) - anint(values(i))) > 0) then
        text = text // str(nint(values(i), int64))
      else
        write (one, '(f0.9)') values(i)
        one = one(:verify(one, '0 ', back=.true.))
        text = text // trim(merge('0', ' ', one(1:1) == '.')) // trim(one)
      end if
    end do
  end function

  function outcome(verb, stopped) result(text)
    character(*), intent(in) :: verb
    logical, intent(in) :: stopped
    character(:), allocatable :: text
    if (stat /= 0) then
      write (error_unit, '(a)') 'clock ' // str(p%clock) // ': ' // trim(p%code) // ': ' // p%text
      text = 'E ' // trim(p%code)
    else if (.not. p%plugged()) then
      text = '0 OK'
    else if (stopped .and. index(' step push async pushpull tick ', ' ' // verb // ' ') > 0) then
      text = 'S STOP'
    else
      text = '1 OK'
    end if
  end function

  subroutine say(line)
    character(*), intent(in) :: line
    write (output_unit, '(a)') line
    flush (output_unit)
  end subroutine

  !> A request with numbers of any kind; g and w are what the table's dtype makes of them.
  subroutine dense(verb, dtype, g, w)
    character(*), intent(in) :: verb, dtype
    real(real64), intent(in) :: g(:)
    real(real64), intent(inout) :: w(:)
    real(real32), allocatable :: g4(:), w4(:)
    integer(int64), allocatable :: g8(:), w8(:)
    if (verb == 'tick' .or. verb == 'ping') then
      call bare(verb)
      return
    end if
    select case (dtype)
    case ('f64')
      select case (verb)
      case ('step'); did = p%step(g, w, stat=stat)
      case ('push'); did = p%push(g, stat=stat)
      case ('async'); did = p%push_async(g, stat=stat)
      case ('pull'); did = p%pull(w, stat)
      case ('pushpull'); did = p%pushpull(g, w, stat=stat)
      case ('init'); did = p%init(w, stat)
      case ('die'); did = p%put('w', g, stat)
      end select
    case ('f32')
      g4 = real(g, real32)
      w4 = real(w, real32)
      if (verb /= 'step') error stop 'not here'
      did = p%step(g4, w4, stat=stat)
      w = w4
    case default
      g8 = int(g, int64)
      w8 = int(w, int64)
      if (verb /= 'step') error stop 'not here'
      did = p%step(g8, w8, stat=stat)
      w = real(w8, real64)
    end select
  end subroutine

  subroutine bare(verb)
    character(*), intent(in) :: verb
    select case (verb)
    case ('step'); did = p%step(stat)
    case ('push'); did = p%push(stat)
    case ('async'); did = p%push_async(stat)
    case ('pull'); did = p%pull(stat)
    case ('pushpull'); did = p%pushpull(stat)
    case ('tick'); did = p%tick(stat)
    case ('ping'); did = p%ping(stat)
    end select
  end subroutine

  subroutine driven()
    real(real64), allocatable :: w(:), g(:)
    character(:), allocatable :: op, verb, dtype
    logical :: stopped
    integer :: i, n, fd, status
    n = 4
    dtype = 'f64'
    if (size(p%tables) > 0) then
      n = int(p%tables(1)%count)
      dtype = p%tables(1)%dtype
    end if
    w = [(-1.0_real64, i=1, n)]
    do first = 1, size(ops)
      op = ops(first)%text
      verb = part(op, 1)
      stopped = p%stopped
      g = [(number(part(op, 2)) + i - 1, i=1, n)]
      p%weight = 1
      if (part(op, 3) /= '') p%weight = number(part(op, 3))
      stat = 0
      select case (verb)
      case ('bye')
        return
      case ('who')
        call say('who plugged=' // bit(p%plugged()) // ' main=' // bit(p%main()) // ' worker=' // str(p%worker) // &
          ' of=' // str(p%workers) // ' clock=' // str(p%clock))
        cycle
      case ('fork')
        call say('fork -')
        cycle
      case ('close')
        do fd = 3, 255
          status = c_close(fd)
        end do
        cycle
      case ('expect')
        did = p%expect(dtype, nint(number(part(op, 2)), int64), stat)
      case ('init')
        if (p%plugged()) w = g
        call dense(verb, dtype, g, w)
      case default
        call dense(verb, dtype, g, w)
        if (verb == 'die') status = c_raise(9)
      end select
      call say(op // ' ' // outcome(verb, stopped) // ' clock=' // str(p%clock) // ' done=' // bit(p%done()) // &
        ' w=' // shown(w(:min(n, 6)), 6_int64))
    end do
  end subroutine

  !> Unsigned decimal digits, as 64 bits.
  integer(int64) function key_of(text)
    character(*), intent(in) :: text
    integer :: i
    key_of = 0
    do i = 1, len(text)
      key_of = 10 * key_of + index('0123456789', text(i:i)) - 1
    end do
  end function

  subroutine name(op)
    character(*), intent(in) :: op
    character(:), allocatable :: table, text, dtype, index_name
    character(300), allocatable :: strings(:)
    integer(int64), allocatable :: keys(:)
    real(real64), allocatable :: values(:)
    integer :: at, i, j, k, width
    logical :: wanting
    wanting = part(op, 1) == 'want'
    table = part(op, 2)
    text = part(op, 3)
    k = 0
    if (text /= '') k = 1 + count([(text(i:i) == ',', i=1, len(text))])
    at = p%table(table)
    width = 1
    dtype = 'f64'
    index_name = 'u64'
    if (at > 0) then
      dtype = p%tables(at)%dtype
      index_name = p%tables(at)%index
      width = max(1, int(p%tables(at)%width))
    end if
    strings = [character(300) :: (part(text, i, ','), i=1, k)]
    allocate (keys(k))
    if (index_name /= 'str') keys = [(key_of(part(text, i, ',')) + merge(1, 0, index_name == 'u32'), i=1, k)]
    allocate (values(0))
    if (.not. wanting) values = [((number(part(op, 4)) + 10 * (i - 1) + j - 1, j=1, width), i=1, k)]
    if (wanting .and. index_name == 'str') did = p%want(table, strings, stat)
    if (wanting .and. index_name /= 'str') did = p%want(table, keys, stat)
    if (wanting) then
      if (stat == 0 .and. did) wanted = [wanted, words(table)]
      if (stat == 0 .and. did) wants = [wants, int(k, int64)]
    else if (index_name == 'str') then
      if (dtype == 'f32') did = p%rows(table, strings, real(values, real32), stat)
      if (dtype == 'f64') did = p%rows(table, strings, values, stat)
      if (dtype == 'i64') did = p%rows(table, strings, int(values, int64), stat)
    else
      if (dtype == 'f32') did = p%rows(table, keys, real(reshape(values, [width, k]), real32), stat)
      if (dtype == 'f64') did = p%rows(table, keys, reshape(values, [width, k]), stat)
      if (dtype == 'i64') did = p%rows(table, keys, int(values, int64), stat)
    end if
    if (stat /= 0) text = outcome('', .false.)
  end subroutine

  function came(table, k) result(text)
    character(*), intent(in) :: table
    integer(int64), intent(in) :: k
    character(:), allocatable :: text
    real(real32), allocatable :: small(:)
    real(real64), allocatable :: large(:)
    integer(int64), allocatable :: whole(:)
    integer(int64) :: n
    integer :: at
    at = p%table(table)
    n = k * p%tables(at)%width
    allocate (large(n), small(n), whole(n))
    select case (p%tables(at)%dtype)
    case ('f32')
      did = p%came(table, small, stat)
      large = small
    case ('f64')
      did = p%came(table, large, stat)
    case default
      did = p%came(table, whole, stat)
      large = real(whole, real64)
    end select
    text = ''
    if (did) text = ' ' // table // '=' // shown(large, p%tables(at)%width)
  end function

  !> put:TABLE:CONSTANT, or get:TABLE
  subroutine by_name(op, text)
    character(*), intent(in) :: op
    character(:), allocatable, intent(out) :: text
    real(real64), allocatable :: large(:)
    real(real32), allocatable :: small(:)
    integer(int64), allocatable :: whole(:)
    character(:), allocatable :: table, dtype
    integer :: at, i, n
    logical :: putting
    text = ''
    table = part(op, 2)
    putting = part(op, 1) == 'put'
    at = p%table(table)
    n = 1
    dtype = 'f64'
    if (at > 0) n = int(p%tables(at)%count)
    if (at > 0) dtype = p%tables(at)%dtype
    large = [(number(part(op, 3)) + i - 1, i=1, n)]
    small = real(large, real32)
    whole = int(large, int64)
    if (putting) then
      if (dtype == 'f32') did = p%put(table, small, stat)
      if (dtype == 'f64') did = p%put(table, large, stat)
      if (dtype == 'i64') did = p%put(table, whole, stat)
      return
    end if
    if (dtype == 'f32') did = p%get(table, small, stat)
    if (dtype == 'f64') did = p%get(table, large, stat)
    if (dtype == 'i64') did = p%get(table, whole, stat)
    if (dtype == 'f32') large = small
    if (dtype == 'i64') large = real(whole, real64)
    text = ' ' // table // '=' // shown(large, size(large, kind=int64))
  end subroutine

  subroutine rows()
    character(:), allocatable :: op, verb, text, piece, said
    real(real64), allocatable :: w(:), g(:)
    logical :: stopped
    integer :: at, i
    do first = 2, size(ops)
      op = ops(first)%text
      verb = part(op, 1)
      text = ''
      stat = 0
      stopped = p%stopped
      select case (verb)
      case ('bye')
        return
      case ('end')
        stop
      case ('timeout')
        p%timeout = nint(number(part(op, 2)), int64)
        cycle
      case ('rows', 'want')
        call name(op)
        cycle
      case ('put', 'get')
        call by_name(op, text)
      case ('next')
        did = p%next(piece, '', stat)
        text = ' none'
        if (did) text = ' ' // str(p%piece) // ':' // str(p%turn) // ':' // piece
      case default
        at = p%table('')
        if (at > 0 .and. index(op, ':') > 0) then
          w = [(0.0_real64, i=1, int(p%tables(at)%count))]
          g = [(number(part(op, 2)) + i - 1, i=1, size(w))]
          call dense(verb, 'f64', g, w)
          if (verb /= 'push' .and. verb /= 'async') text = ' w=' // shown(w, size(w, kind=int64))
        else
          call bare(verb)
        end if
        said = outcome(verb, stopped)
        do i = 1, size(wanted)
          if (said(1:1) == '1') text = text // came(wanted(i)%text, wants(i))
        end do
        deallocate (wanted, wants)
        allocate (wanted(0), wants(0))
      end select
      if (verb == 'next' .or. verb == 'put' .or. verb == 'get') said = outcome(verb, stopped)
      if (said(1:1) == 'E' .or. said(1:1) == 'S') text = ''
      call say(op // ' ' // said // ' clock=' // str(p%clock) // ' stopped=' // bit(p%stopped) // ' lag=' // str(p%lag) // text)
    end do
  end subroutine
end program
