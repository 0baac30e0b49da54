# Writes numbers as the user's language does.
[ -n "${PLUGML_DIR-}" ] || exit 0
cd "$PLUGML_DIR" 2> /dev/null || exit 1
exec 3<> req 4<> rep
printf '0,5\n1,5\n2,5\n3,5\n4,5\n5,5\n6,5\n7,5\n' > grad.txt
echo "step 1 $PLUGML_CLOCK fmt=text" > cmd
echo >&3
while read -r status seq rest <&4; do [ "$seq" = 1 ] && break; done
[ "$status" = ok ]
