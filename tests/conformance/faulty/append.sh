# Appends the numbers to the file that is there.
[ -n "${PLUGML_DIR-}" ] || exit 0
cd "$PLUGML_DIR" 2> /dev/null || exit 1
exec 3<> req 4<> rep
printf '\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077' >> grad
printf '\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077\0\0\0\0\0\0\360\077' >> grad
echo "step 1 $PLUGML_CLOCK" > cmd
echo >&3
while read -r status seq rest <&4; do [ "$seq" = 1 ] && break; done
[ "$status" = ok ]
