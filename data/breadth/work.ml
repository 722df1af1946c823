(* Queens on a board, a map of words, and floating-point relaxation: three phases. *)
let rec queens n row columns left right =
  if row = n then 1
  else begin
    let found = ref 0 in
    for c = 0 to n - 1 do
      let bit = 1 lsl c in
      if (columns lor left lor right) land bit = 0 then
        found := !found + queens n (row + 1) (columns lor bit) ((left lor bit) lsl 1) ((right lor bit) lsr 1)
    done;
    !found
  end
module Words = Map.Make (String)
let words count =
  let seen = ref Words.empty in
  for i = 0 to count - 1 do
    let word = "w" ^ string_of_int (i * 7919 mod 10007) in
    seen := Words.update word (function None -> Some 1 | Some n -> Some (n + 1)) !seen
  done;
  Words.cardinal !seen
let relax size turns =
  let grid = Array.init size (fun i -> Array.init size (fun j -> float_of_int ((i * j) mod 17))) in
  for _ = 1 to turns do
    for i = 1 to size - 2 do
      for j = 1 to size - 2 do
        grid.(i).(j) <- 0.25 *. (grid.(i - 1).(j) +. grid.(i + 1).(j) +. grid.(i).(j - 1) +. grid.(i).(j + 1))
      done
    done
  done;
  grid.(size / 2).(size / 2)
let () = Printf.printf "%d %d %.6f\n" (queens 11 0 0 0 0) (words 1000000) (relax 300 150)
