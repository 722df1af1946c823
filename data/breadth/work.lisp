;; Primes, a hash table, and the product of long numbers: three phases.
(defun primes (limit)
  (let ((flags (make-array (1+ limit) :initial-element t)) (count 0))
    (loop for i from 2 to limit do
      (when (aref flags i)
        (incf count)
        (loop for j from (* i i) to limit by i do (setf (aref flags j) nil))))
    count))
(defun words (count)
  (let ((seen (make-hash-table)))
    (dotimes (i count) (incf (gethash (mod (* i 7919) 10007) seen 0)))
    (hash-table-count seen)))
(defun factorial (n) (let ((value 1)) (loop for i from 2 to n do (setf value (* value i))) value))
(format t "~a ~a ~a~%" (primes 300000) (words 300000) (integer-length (factorial 6000)))
